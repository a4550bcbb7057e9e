"""Where images come from: a section for each kind of source in `kinds/`, and what the sections open beside it."""
