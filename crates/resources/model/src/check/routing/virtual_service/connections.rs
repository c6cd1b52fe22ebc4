//! `tls` and `tcp` of a VirtualService: where connections go of which only the name that TLS asks for and the address that was called
//! are known.

use std::collections::BTreeMap;

use super::{RuleReader, whole};
use crate::codes;
use crate::decode::{Cursor, Fields};
use crate::mesh::action::HeaderRules;
use crate::mesh::{
    AddressRange, Criteria, Criterion, LayerFourRoute, Subject, WeightedDestination,
};
use crate::names::Hostname;
use crate::source::Source;
use crate::text::clip;

/// Most names, or ranges, of one match: each is an entry of a table.
const MAX_ALTERNATIVES: usize = 1_000;

impl RuleReader<'_> {
    /// One of `tls`: each match names the servers that are asked for, which must be among the hosts.
    pub(super) fn tls(
        &self,
        cursor: &Cursor<'_>,
        hosts: &[(Hostname, Source)],
    ) -> Option<LayerFourRoute> {
        let mut fields = cursor.fields()?;
        let matches = fields.list("match", |cursor| {
            let mut fields = cursor.fields()?;
            let mut criteria = BTreeMap::new();
            self.server_names(&mut fields, hosts, &mut criteria);
            self.connection(fields, &mut criteria);
            Some(criteria)
        });
        if matches.is_empty() {
            self.report.required(None::<()>, fields.at(), "match");
        }
        Some(self.connections(fields, cursor, matches))
    }

    /// One of `tcp`.
    pub(super) fn tcp(&self, cursor: &Cursor<'_>) -> Option<LayerFourRoute> {
        let mut fields = cursor.fields()?;
        let matches = fields.list("match", |cursor| {
            let mut criteria = BTreeMap::new();
            self.connection(cursor.fields()?, &mut criteria);
            Some(criteria)
        });
        Some(self.connections(fields, cursor, matches))
    }

    fn connections(
        &self,
        mut fields: Fields<'_>,
        cursor: &Cursor<'_>,
        matches: Vec<Criteria>,
    ) -> LayerFourRoute {
        let route = fields.list("route", |cursor| self.led(cursor));
        if route.is_empty() {
            self.report.required(None::<()>, cursor.at(), "route");
        }
        self.sharing(&route, cursor.at());
        fields.finish();
        LayerFourRoute {
            source: self.report.source(cursor.at()),
            matches,
            route,
        }
    }

    /// One of `route`, which has no headers to change.
    fn led(&self, cursor: &Cursor<'_>) -> Option<WeightedDestination> {
        let mut fields = cursor.fields()?;
        let at = fields.at().clone();
        let to = self
            .report
            .required(fields.get("destination"), &at, "destination");
        let weight = self.weight(&mut fields);
        fields.finish();
        Some(WeightedDestination {
            to: self.destination(&to?)?,
            weight: weight.unwrap_or(0),
            headers: HeaderRules::default(),
        })
    }

    /// Parses the criteria that matches of both layers have.
    fn connection(&self, mut fields: Fields<'_>, criteria: &mut Criteria) {
        let report = self.report;
        let subnets = fields.texts("destinationSubnets");
        self.bounded(subnets.len(), &fields, "destinationSubnets");
        let range = |text: &crate::decode::Text| {
            let help = "write an address or a range such as 10.0.0.0/8";
            let range = report.parsed(text, "a subnet", AddressRange::parse, help)?;
            Some(range.to_string().into())
        };
        let subnets: Vec<_> = subnets.iter().filter_map(range).collect();
        if !subnets.is_empty() {
            criteria.insert(Subject::DestinationSubnets, Criterion::OneOf(subnets));
        }
        self.who(&mut fields, criteria);
        // Istio has the field and no proxy that looks at it.
        fields.not_yet(&["sourceSubnet"]);
        fields.finish();
    }

    fn server_names(
        &self,
        fields: &mut Fields<'_>,
        hosts: &[(Hostname, Source)],
        criteria: &mut Criteria,
    ) {
        let report = self.report;
        let names = fields.texts("sniHosts");
        if names.is_empty() {
            report.required(None::<()>, fields.at(), "sniHosts");
        }
        self.bounded(names.len(), fields, "sniHosts");
        let mut known = Vec::with_capacity(names.len());
        for text in &names {
            let Some(name) = super::values::hostname(text, report) else {
                continue;
            };
            // A short name is a Service's of this namespace in `hosts`, and goes on as it is in the client's hello.
            let service = whole(text, self.name, report).unwrap_or_else(|| name.clone());
            let covers = |host: &Hostname| host.covers(&name) || *host == service;
            if !hosts.iter().any(|(host, _)| covers(host)) {
                let message = format!(
                    "`{}` is not among the hosts of this VirtualService",
                    clip(&text.value)
                );
                let help = "add it to `hosts`, or write one that they cover";
                report.error(codes::CONTRADICTION, &text.at, message, help);
            }
            known.push(name.as_str().into());
        }
        criteria.insert(Subject::SniHosts, Criterion::OneOf(known));
    }

    fn bounded(&self, count: usize, fields: &Fields<'_>, field: &str) {
        if count > MAX_ALTERNATIVES {
            let message = format!("{count} of `{field}`; a match allows {MAX_ALTERNATIVES}");
            let help = "split them into several matches";
            self.report.error(codes::LIMIT, fields.at(), message, help);
        }
    }
}
