//! Decisions about who may talk to whom: peer authentication
