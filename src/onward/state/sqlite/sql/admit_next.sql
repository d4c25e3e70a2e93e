-- Whether keys were woken, and when the next slot of a rate comes: a read, so that an idle worker takes no write lock.
SELECT EXISTS (SELECT 1 FROM /*schema*/limit_wake), (SELECT min(wake_at) FROM /*schema*/limit_key WHERE wake_at IS NOT NULL)
