"""Make a release (wheel, images, chart, SBOMs, provenance, signatures), and verify one."""
