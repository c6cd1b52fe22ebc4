//! Record types, statistics, HTML and SVG of the laboratory
