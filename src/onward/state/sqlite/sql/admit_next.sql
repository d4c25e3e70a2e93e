-- Whether keys were woken, when the next slot of a rate comes, whether jobs are held, and whether some were let in by a rate
-- a while ago, whether there are rates, and whether it is time to look after types that nobody serves: a read, so that an idle
-- worker takes no write lock. A slot that is further away than it can be is due: the clock was set back.
SELECT EXISTS (SELECT 1 FROM /*schema*/limit_wake), iif(
    (SELECT max(wake_at) FROM /*schema*/limit_key WHERE wake_at IS NOT NULL) > :now + /*include fragments/farthest_slot*/, :now,
    (SELECT min(wake_at) FROM /*schema*/limit_key WHERE wake_at IS NOT NULL)),
  EXISTS (SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held WHERE /*include fragments/held_job*/),
  EXISTS (SELECT 1 FROM /*schema*/limit_key WHERE stale_at <= :now),
  EXISTS (SELECT 1 FROM /*schema*/limit_rule WHERE every IS NOT NULL),
  EXISTS (SELECT 1 FROM /*schema*/limit_sweep WHERE abs(:now - swept_at) >= :sweep_every)
