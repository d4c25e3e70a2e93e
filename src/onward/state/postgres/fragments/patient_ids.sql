-- The ids; first, before any row is locked, it is said how long to wait for a lock. As a rule the connection has it so, and
-- to look costs less than to set it.
CASE WHEN :impatient::boolean AND /*include fragments/impatience*/ IS NULL THEN NULL ELSE :ids::uuid[] END
