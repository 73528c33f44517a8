"""What agents report: the values, the wire form (agent.proto), their age, and the hub that receives them."""
