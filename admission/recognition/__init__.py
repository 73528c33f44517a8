"""What a pod is: signals and their ranks, rule files, and whose group it is in already."""
