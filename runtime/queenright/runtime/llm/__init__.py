"""Language models: what one is, litellm, and a script that stands in for one."""
