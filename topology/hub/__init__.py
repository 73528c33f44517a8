"""The gRPC server that agents report to."""
