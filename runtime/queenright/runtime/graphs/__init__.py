"""What a graph is made of, as data, and the rules that it is held to."""
