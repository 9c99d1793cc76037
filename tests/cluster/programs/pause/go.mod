module testcluster/pause
go 1.26
