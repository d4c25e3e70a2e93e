-- The user's table: one row for each job, up to 50,000 jobs.
create table account (id integer primary key, visits integer not null);
insert into account select id, 0 from generate_series(0, 49999) id;
