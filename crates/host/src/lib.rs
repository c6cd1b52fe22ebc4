//! Supervised child processes, cgroups, resource samplers
