-- The image's own first start runs this as the owner: the runtime role, with the password of the
-- environment. `forgetting migrate` leaves a role alone that is there.
\getenv password FORGETTING_RUNTIME_PASSWORD
CREATE ROLE forgetting_runtime
LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD :'password';
