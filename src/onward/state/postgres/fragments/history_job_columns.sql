/*include fragments/stored_columns*/, /*schema*/history_problem(job)
