BEGIN TRANSACTION;
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY, execution TEXT NOT NULL, event TEXT NOT NULL, record BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
INSERT INTO "audit" VALUES(1,'bda5601964ce473dbcc824527544ad80','begin',CAST('{"at":1795813678.0138595,"event":"begin","execution":"bda5601964ce473dbcc824527544ad80","tenant":"acme","session":"s1","language":"python","code_sha256":"8bdfaddc0b2b715a7d2178c9877a153dcd2cc2daabdd0663a00c52e39265845f"}' AS BLOB),'29dc71a0f3b7e8afdc116269a8a0ea41366bd2d1aa3477a00ce6280515ce0a5c');
INSERT INTO "audit" VALUES(2,'bda5601964ce473dbcc824527544ad80','end',CAST('{"at":1795813678.0248127,"event":"end","execution":"bda5601964ce473dbcc824527544ad80","outcome":"ok","duration_ms":8.503,"error":null,"output_bytes":0,"memory":null}' AS BLOB),'492d1c95102c3d33909d0c07fc242b1a8569eadd793f4f5d6b080a3fe975dcf2');
CREATE UNIQUE INDEX audit_once ON audit (execution, event);
CREATE INDEX audit_tenant ON audit (json_extract(CAST(record AS TEXT), '$.tenant'), seq)
    WHERE event = 'begin';
CREATE INDEX audit_cut ON audit (seq) WHERE event = 'cut';
COMMIT;
