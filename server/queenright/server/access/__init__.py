"""Access control: tokens, roles, guards of both ports, and callers' names for the audit trail."""
