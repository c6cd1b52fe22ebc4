//! Tokens made to be believed wrongly, and tokens made to cost.
