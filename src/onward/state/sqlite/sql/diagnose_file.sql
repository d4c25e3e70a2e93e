-- The file: where it is, how it is written, how much of it is used, and how long this connection waits for a lock.
SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), (SELECT journal_mode FROM pragma_journal_mode),
  (SELECT page_size FROM pragma_page_size), (SELECT page_count FROM pragma_page_count),
  (SELECT freelist_count FROM pragma_freelist_count), (SELECT synchronous FROM pragma_synchronous)
