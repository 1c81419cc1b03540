"""What the PostgreSQL store keeps on the server: two tables, a sequence, and a function for each call that writes.

A function call is one round trip and one transaction, so a gateway that dies or stalls never holds a lock. Writers of one key go
one after the other by an advisory lock on a stripe of the keys, taken in one order and before anything is read; that covers keys
which are not there yet and have no row to lock. The version is drawn after the locks are held, so along each key versions rise,
and so do those of commits that follow each other; commits of different keys share their fsyncs.

The sweep comes last and skips rows that others hold: it never waits, so it can be part of no deadlock.
"""

from __future__ import annotations

import zlib

LAYOUT = 1

_MAKE = """
SELECT pg_advisory_xact_lock({entries_class}, 256);
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.layout (version int PRIMARY KEY);
CREATE TABLE IF NOT EXISTS {schema}.entries (
    key bytea PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL, expires float8
);
CREATE INDEX IF NOT EXISTS entries_expires ON {schema}.entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS {schema}.counters (key bytea PRIMARY KEY, total bigint NOT NULL, expires float8);
CREATE INDEX IF NOT EXISTS counters_expires ON {schema}.counters (expires) WHERE expires IS NOT NULL;
CREATE SEQUENCE IF NOT EXISTS {schema}.newest;

CREATE OR REPLACE FUNCTION {schema}.moment(given float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, extract(epoch FROM clock_timestamp())::float8)
$$;

CREATE OR REPLACE FUNCTION {schema}.take(class int, keys bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(class, stripe)
    FROM (SELECT DISTINCT get_byte(sha256(k), 0) AS stripe FROM unnest(keys) AS k ORDER BY 1) AS stripes;
END $$;

CREATE OR REPLACE FUNCTION {schema}.commit_changes(
    p_now float8, p_keys bytea[], p_values bytea[], p_ttls float8[], p_expects bigint[],
    OUT o_version bigint, OUT o_refused bigint, OUT o_found bigint
) LANGUAGE plpgsql AS $$
DECLARE v_now float8;
BEGIN
    PERFORM {schema}.take({entries_class}, p_keys);
    v_now := {schema}.moment(p_now);
    SELECT c.i - 1, coalesce(e.version, 0) INTO o_refused, o_found
    FROM unnest(p_keys, p_expects) WITH ORDINALITY AS c (key, expect, i)
    LEFT JOIN {schema}.entries AS e ON e.key = c.key AND (e.expires IS NULL OR e.expires > v_now)
    WHERE c.expect <> coalesce(e.version, 0) ORDER BY c.i LIMIT 1;
    IF FOUND THEN RETURN; END IF;
    o_version := nextval('{schema}.newest');
    DELETE FROM {schema}.entries AS e USING unnest(p_keys, p_values) AS c (key, value)
    WHERE e.key = c.key AND c.value IS NULL;
    INSERT INTO {schema}.entries (key, value, version, expires)
    SELECT c.key, c.value, o_version, v_now + c.ttl FROM unnest(p_keys, p_values, p_ttls) AS c (key, value, ttl)
    WHERE c.value IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, expires = excluded.expires;
    DELETE FROM {schema}.entries WHERE key IN (
        SELECT key FROM {schema}.entries WHERE expires <= v_now ORDER BY expires
        LIMIT 16 + 2 * cardinality(p_keys) FOR UPDATE SKIP LOCKED
    );
END $$;

CREATE OR REPLACE FUNCTION {schema}.add_amounts(
    p_now float8, p_keys bytea[], p_amounts bigint[], p_ceilings bigint[], p_ttls float8[],
    OUT o_totals bigint[], OUT o_refused bigint
) LANGUAGE plpgsql AS $$
DECLARE v_now float8;
BEGIN
    PERFORM {schema}.take({counters_class}, p_keys);
    v_now := {schema}.moment(p_now);
    SELECT array_agg(coalesce(c.total, 0) ORDER BY a.i),
           min(a.i - 1) FILTER (WHERE a.amount > 0 AND coalesce(c.total, 0) + a.amount > a.ceiling)
    INTO o_totals, o_refused
    FROM unnest(p_keys, p_amounts, p_ceilings) WITH ORDINALITY AS a (key, amount, ceiling, i)
    LEFT JOIN {schema}.counters AS c ON c.key = a.key AND (c.expires IS NULL OR c.expires > v_now);
    IF o_refused IS NOT NULL THEN RETURN; END IF;
    WITH news AS MATERIALIZED (
        SELECT a.key, greatest(0, coalesce(c.total, 0) + a.amount) AS total,
               CASE WHEN c.key IS NULL THEN v_now + a.ttl ELSE c.expires END AS expires
        FROM unnest(p_keys, p_amounts, p_ttls) AS a (key, amount, ttl)
        LEFT JOIN {schema}.counters AS c ON c.key = a.key AND (c.expires IS NULL OR c.expires > v_now)
        WHERE a.amount > 0 OR (a.amount < 0 AND c.key IS NOT NULL)
    ), gone AS (
        DELETE FROM {schema}.counters AS c USING news AS n WHERE c.key = n.key AND n.total = 0 AND n.expires IS NULL
    )
    INSERT INTO {schema}.counters (key, total, expires)
    SELECT key, total, expires FROM news WHERE total > 0 OR expires IS NOT NULL
    ON CONFLICT (key) DO UPDATE SET total = excluded.total, expires = excluded.expires;
    SELECT array_agg(greatest(0, t.total + t.amount) ORDER BY t.i) INTO o_totals
    FROM unnest(o_totals, p_amounts) WITH ORDINALITY AS t (total, amount, i);
    DELETE FROM {schema}.counters WHERE key IN (
        SELECT key FROM {schema}.counters WHERE expires <= v_now ORDER BY expires
        LIMIT 16 + 2 * cardinality(p_keys) FOR UPDATE SKIP LOCKED
    );
END $$;

INSERT INTO {schema}.layout VALUES ({layout}) ON CONFLICT DO NOTHING;
"""

_LIVE = "(expires IS NULL OR expires > coalesce($1::float8, extract(epoch FROM now())::float8))"

_GET = f"SELECT key, value, version, expires FROM {{schema}}.entries WHERE key = ANY ($2::bytea[]) AND {_LIVE}"  # noqa: S608

# The size of a value is known without reading it, so a page that ends early costs no more than what is in it.
_SCAN = f"""
SELECT key, value, version, expires FROM (
    SELECT *, sum(octet_length(value)) OVER (ORDER BY key) - octet_length(value) AS before FROM (
        SELECT * FROM {{schema}}.entries WHERE key >= $2::bytea AND key < $3::bytea AND {_LIVE} ORDER BY key LIMIT $4::bigint
    ) AS range
) AS page WHERE before < $5::bigint ORDER BY key
"""  # noqa: S608

_STATEMENTS = {
    "make": _MAKE,
    "version": "SELECT max(version) FROM {schema}.layout",
    "get": _GET,
    "scan": _SCAN,
    "newest": "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.newest",
    "commit": "SELECT * FROM {schema}.commit_changes($1::float8, $2::bytea[], $3::bytea[], $4::float8[], $5::bigint[])",
    "add": "SELECT * FROM {schema}.add_amounts($1::float8, $2::bytea[], $3::bigint[], $4::bigint[], $5::float8[])",
}


def statements(schema: str) -> dict[str, str]:
    """The statements for a schema, whose name needs no quotes."""
    classes = {f"{table}_class": _signed(f"sits {schema} {table}") for table in ("entries", "counters")}
    return {name: text.format(schema=schema, layout=LAYOUT, **classes) for name, text in _STATEMENTS.items()}


def _signed(name: str) -> int:
    """A number of 32 bits with a sign, for the first half of an advisory lock."""
    return zlib.crc32(name.encode()) - 2**31
