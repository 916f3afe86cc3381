"""Multi-token prediction (MTP): the block inside of a checkpoint, which predicts the token after the next, drafts."""
