"""The node agent: what one machine tells of itself through NVML, sysfs and the kubelet, and its probes."""
