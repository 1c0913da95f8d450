"""Export the rules as files, an archive or Kubernetes objects, and compare them with existing rules."""
