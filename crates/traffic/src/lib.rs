//! Decisions about where a request goes: endpoint choice, limits, budgets
