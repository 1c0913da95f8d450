"""What goes over HTTP, as models: the service answers with them, and the client reads them."""
