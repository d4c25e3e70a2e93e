-- Whether scheduled jobs are due, and when the next one will be: a read, so that an idle worker takes no write lock.
SELECT
  max(EXISTS (
    SELECT 1 FROM /*schema*/job due
    WHERE due.status = 'pending' AND due.deferred = 1 AND due.type_name = asked.value AND due.scheduled_at <= :now
  )),
  min((
    SELECT later.scheduled_at FROM /*schema*/job later
    WHERE later.status = 'pending' AND later.deferred = 1 AND later.type_name = asked.value
      AND later.scheduled_at > :now AND typeof(later.scheduled_at) = 'integer'
    ORDER BY later.scheduled_at LIMIT 1
  ))
FROM json_each(:type_names) asked
