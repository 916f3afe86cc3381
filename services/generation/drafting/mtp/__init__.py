"""Multi-token prediction (MTP): the block inside a checkpoint, which predicts the token after the next, drafts."""
