CASE WHEN current_setting('lock_timeout') = '100ms' THEN '100ms' ELSE set_config('lock_timeout', '100ms', true) END
