//! Questions to the external authorization service, within its deadline.

use std::rc::Rc;
use std::time::Duration;

use super::question::OverHttp;
use super::{Authorizer, AuthorizerRequest, AuthorizerResponse, answer};
use crate::http::{RequestRoute, UpstreamHttp};
use crate::plan::AuthorizerPlan;
use crate::worker::Worker;
use crate::worker::policy::external_call::{CallFailure, Callee, Dialer};

/// Timeout of an answer if the provider states none: Istio's ten minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Envoy's method.
const METHOD: &str = "/envoy.service.auth.v3.Authorization/Check";

impl Authorizer {
    /// Follows a plan; keeps the pools of an unchanged service.
    pub(crate) fn follow(
        worker: &Worker,
        before: Option<&Rc<Self>>,
        plan: &AuthorizerPlan,
    ) -> Rc<Self> {
        if let Some(before) = before.filter(|before| before.plan == *plan) {
            return Rc::clone(before);
        }
        let whom = |plan: &AuthorizerPlan| {
            let settings = &plan.settings;
            let over_http = settings.http.is_some();
            (
                settings.name.clone(),
                settings.service.clone(),
                settings.port,
                over_http,
            )
        };
        let same = before.filter(|before| whom(&before.plan) == whom(plan));
        let same = same.map(|same| &same.callee);
        Rc::new(Self {
            callee: Callee::follow(worker, same, &plan.service),
            plan: plan.clone(),
        })
    }

    /// Puts a question, within the provider's timeout.
    pub(crate) async fn ask(
        &self,
        worker: &Worker,
        question: AuthorizerRequest,
    ) -> AuthorizerResponse {
        let limit = self.plan.settings.timeout.unwrap_or(ANSWER_TIMEOUT);
        let over_http2 = self.plan.service.protocol.is_http2();
        let upstream = match &question {
            AuthorizerRequest::Http(_) if !over_http2 => UpstreamHttp::Http1,
            AuthorizerRequest::Grpc(..) | AuthorizerRequest::Http(_) => UpstreamHttp::Http2,
        };
        let question = &question;
        let asked = self.callee.ask(
            worker,
            (limit, upstream),
            async |dialer, route| match question {
                AuthorizerRequest::Grpc(asked, _) => {
                    let called = self.callee.call((dialer, route), METHOD, &**asked);
                    called.await.map(answer::of_grpc)
                }
                AuthorizerRequest::Http(asked) => self.ask_over_http((dialer, route), asked).await,
            },
        );
        let answer = asked.await.unwrap_or_else(AuthorizerResponse::failed);
        if let AuthorizerResponse::Failed(why) | AuthorizerResponse::Unusable(why) = &answer {
            tracing::debug!(provider = self.name(), %why, "not decided");
        }
        answer
    }

    async fn ask_over_http<'w>(
        &self,
        through: (&Dialer<'w>, &RequestRoute<Dialer<'w>>),
        asked: &OverHttp,
    ) -> Result<AuthorizerResponse, CallFailure> {
        let lines = &self.callee.lines;
        let answered = lines.exchange(through, &asked.bytes, asked.is_head).await;
        let mut answered = answered?;
        let (head, body) = answered.parts();
        Ok(match &self.plan.settings.http {
            Some(http) => answer::of_http(http, head.status(), head.headers(), body),
            None => AuthorizerResponse::failed(
                "invalid provider: called over HTTP without HTTP settings",
            ),
        })
    }
}
