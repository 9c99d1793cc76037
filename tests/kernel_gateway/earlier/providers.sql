BEGIN TRANSACTION;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "settings" VALUES('sandbox.e2b','{"api_key":{"encrypted":"Ya9/5HYjNY86VGqXgGLnKpGwrjCidO/FfXppvtvY28d2"},"region":"us","timeout":30,"template":"base","domain":"e2b.app","api_url":"","sandbox_url":""}');
INSERT INTO "settings" VALUES('sandbox.local','{"allowed_commands":"python,node,deno","allowed_paths":"","timeout":7,"max_output":1048576}');
INSERT INTO "settings" VALUES('sandbox.provider_type','"local"');
COMMIT;
