"""Order among gangs: priority, queue quota, bypass limit, preemption."""
