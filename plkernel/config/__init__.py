"""Studies as data: a spec is read and checked here, without torch, and resolved into conditions."""
