"""Pictures, tables and the HTML report, made from the database."""
