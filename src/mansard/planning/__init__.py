"""Planning for people: names in, a typed plan out, and its faces: terminal, JSON, CSV, a page."""
