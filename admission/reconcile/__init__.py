"""The loop over gangs: gang state, planning, release workflow, batches."""
