"""Who may do what: tokens, roles, the guard before the API, and by whom something is done."""
