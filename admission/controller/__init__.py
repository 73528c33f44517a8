"""The controller process: watches, measurements and probes wired to batch admission, and its metrics."""
