"""Language models: the provider protocol, litellm, and a scripted stand-in."""
