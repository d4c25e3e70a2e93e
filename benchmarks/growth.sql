-- Rows as Onward would have left them, numbered from `first` to `last` and spread over `types` types: those below
-- `finished` are completed, the others wait.
-- Ids rise with time, as Onward's do; from 2020 on, so that jobs started later sort behind them.
\set began '(extract(epoch from timestamptz ''2020-01-01'') * 1000)::bigint'
insert into onward.job (
  id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input, output, created_at, scheduled_at,
  root_id, attempt, ended_at, completed_by, chain_ended_at
)
select
  new.id, new.id, 0, case when new.n % :types = 0 then 'noop' else 'noop' || new.n % :types end, 1,
  case when new.done then 'completed' else 'pending' end, 0, false, json_build_object('n', new.n % 400000),
  case when new.done then 'null'::json end, new.at, new.at, new.id, new.done::integer,
  case when new.done then new.at end, case when new.done then 'somebody' end, case when new.done then new.at end
from (
  select
    n, n < :finished as done, to_timestamp((:began + n) / 1000.0) as at,
    (lpad(to_hex(:began + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid as id
  from generate_series(:first, :last - 1) n
) new;
vacuum analyze;
checkpoint;
