"""What to do and why: policy, plan, decide, explain, and the Volcano extender."""
