/*include fragments/stored_columns*/, /*schema*/problem(job)
