"""The main job as a person sees it: serve, speculate, receipt, replay."""
