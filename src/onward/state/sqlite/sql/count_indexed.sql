-- Whether few enough jobs are in the indexes to look through them all.
SELECT count(*) FROM (
  /*include fragments/indexed_ids*/
  LIMIT :limit
) found
