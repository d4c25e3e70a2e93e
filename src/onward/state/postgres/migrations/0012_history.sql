-- The history: where chains are moved that are no longer looked up every day, instead of being deleted.

-- The jobs of chains that have ended, whole and as they were. All of a chain have the time at which it ended: they are in one
-- part, and a part, a month by UTC, is dropped whole. Made by move_to_history, as parts are needed.
CREATE TABLE /*schema*/history (LIKE /*schema*/job) PARTITION BY RANGE (chain_ended_at);
ALTER TABLE /*schema*/history ALTER COLUMN chain_ended_at SET NOT NULL;
-- One chain by its id, and those of a type, the last to end first: that is all that is looked up there.
CREATE INDEX history_chain ON /*schema*/history (chain_id, chain_index);
CREATE INDEX history_type ON /*schema*/history (type_name, chain_failed, chain_ended_at, id) WHERE chain_index = 0;

-- The parts there are, or are to be, and until when somebody wants what is in them.
CREATE TABLE /*schema*/history_part (
  starts_at  timestamptz PRIMARY KEY,
  kept_until timestamptz NOT NULL,
  -- For drop_history_parts: to be dropped. Nobody sees it that way, unless somebody has written it by hand.
  is_over    boolean NOT NULL DEFAULT false
);

/*include functions/history*/
