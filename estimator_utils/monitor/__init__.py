"""The monitor, the verifier's side: sessions in a source's readings, estimated and logged."""
