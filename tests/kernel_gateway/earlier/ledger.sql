BEGIN TRANSACTION;
CREATE TABLE asked (
    tenant TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (tenant, name, key)
) STRICT;
INSERT INTO "asked" VALUES('acme','s1','once',X'0E91C1915FC5A752188AD84B9B884A9FCB3EAE96CFEC1C4DA9ED7308881E33C2');
CREATE TABLE ended (
    at INTEGER PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, UNIQUE (tenant, name)
) STRICT;
INSERT INTO "ended" VALUES(1,'acme','gone','the session was ended');
CREATE TABLE kept (
    kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (kind, tenant, name)
) STRICT;
INSERT INTO "kept" VALUES('SessionRecord','acme','s1',CAST('{"key":{"tenant":"acme","name":"s1"},"spec":{"language":"python","limits":{"memory":536870912,"cpus":1.0,"processes":64,"disk":268435456,"output":10485760},"env":{"A":"b"},"idle_timeout":300.0,"max_execute_timeout":600.0,"cwd":"deep","workspace":null,"image":"","throwaway":false,"network":"none"},"created_at":1795813677.41121,"id":"4db6f08c37334e6c9d46e1fbc7cdcf39","container":{"id":"41fd33aa887746e8","info":{"transport":"ipc","ip":"/tmp/kernel-gateway-_1vfmzrp/41fd33aa887746e8/k","shell_port":1,"iopub_port":2,"stdin_port":3,"control_port":4,"hb_port":5,"key":"48b3848cd13df9572276e4f637e561d251e19384c7dc47e7f218fb88ca8f19f7","signature":"hmac-blake2b","curve_publickey":"v6u(pS0(XAAC(ivfm-(erd<dCQW$W46U7>EC%ebu","curve_secretkey":"n!Xvk.7b87R.cHh}:&cgkEO8y+@Hxmbgtvg.{Hg="},"workspace":"8a0ba1e167c84400a9b616413683def1"},"notice":{"change":"preserved","reason":null,"incarnation":1}}' AS BLOB));
INSERT INTO "kept" VALUES('SandboxRecord','acme','box',CAST('{"key":{"tenant":"acme","name":"box"},"spec":{"template":"code-interpreter-v1","limits":{"memory":536870912,"cpus":1.0,"processes":64,"disk":268435456,"output":10485760},"env":{},"idle_timeout":300.0,"lifetime":0.0,"max_execute_timeout":600.0,"template_id":"02daafc5-8d7f-546a-ad84-7bd6b5bf2458"},"workspace":"2c8f77da4c1e462c9d68881218332306","created_at":1795813678.6705873,"container":{"id":"1008223faa894a69","info":{"transport":"ipc","ip":"/tmp/kernel-gateway-_1vfmzrp/1008223faa894a69/k","shell_port":1,"iopub_port":2,"stdin_port":3,"control_port":4,"hb_port":5,"key":"d25a3584590cf08b77660a5de0dd26bc74e9dd020fcac55003694f10678ed0c7","signature":"hmac-sha256","curve_publickey":null,"curve_secretkey":null},"workspace":"2c8f77da4c1e462c9d68881218332306"},"loss":null}' AS BLOB));
CREATE INDEX ended_of ON ended (tenant);
COMMIT;
