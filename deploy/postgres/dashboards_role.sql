-- The role of dashboards: it reads the hourly sums of the history and nothing else, no decision, no
-- key, no policy. Run it as a user who may make roles, after `nexuskv migrate`; again at any time:
--
--   psql "$NEXUSKV_DATABASE_URL" -v ON_ERROR_STOP=1 -v password=... -f deploy/postgres/dashboards_role.sql

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'nexuskv_dashboards') THEN
        CREATE ROLE nexuskv_dashboards;
    END IF;
END
$$;

ALTER ROLE nexuskv_dashboards WITH LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION
    NOBYPASSRLS CONNECTION LIMIT 10 PASSWORD :'password';
-- A dashboard that asks too much gives up; it does not hold up the service.
ALTER ROLE nexuskv_dashboards SET default_transaction_read_only = on;
ALTER ROLE nexuskv_dashboards SET statement_timeout = '10s';
ALTER ROLE nexuskv_dashboards SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE nexuskv_dashboards SET work_mem = '16MB';

GRANT USAGE ON SCHEMA history TO nexuskv_dashboards;
GRANT SELECT ON history.decisions_hourly, history.outcomes_hourly TO nexuskv_dashboards;
