//! Installations whose namespaces overlap.

use super::*;

impl Play {
    fn see_other(&mut self, event: impl FnOnce(Box<lessor_api::Lessor>) -> Event<lessor_api::Lessor>) {
        let mut lessor = self.lessor(json!({"primary": "theirs", "term": 1, "namespaces": ["shop"]}));
        lessor.metadata.name = Some("theirs".to_owned());
        self.observe(Observation::OtherLessor(event(Box::new(lessor))));
    }

    fn condition_written(&self) -> Option<(Ticket, Value)> {
        self.asked.iter().find_map(|(ticket, request)| match request {
            Request::WriteLessor { status, .. } => Some((*ticket, status["conditions"][0].clone())),
            _ => None,
        })
    }
}

#[test]
fn a_namespace_that_another_installation_names_is_left_alone_and_reported_at_once() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_map("map", json!({"lessor.dev/lease": "cart"}));
    play.asked.clear();
    play.see_other(Event::Applied);
    assert_eq!(play.replica.leases().iter().count(), 0);
    assert_eq!(play.replica.attached().count(), 0);
    let (ticket, condition) = play.condition_written().expect("a condition");
    assert_eq!(
        (condition["type"].as_str(), condition["status"].as_str()),
        (Some("NamespacesServed"), Some("False"))
    );
    assert!(condition["message"].as_str().is_some_and(|message| message.contains("shop")), "{condition}");
    let event = play.user_events.iter().find(|event| event.reason == "Overlap").expect("an Event");
    assert!(event.warning);
    let lessor = play.lessor(json!({"primary": ME, "term": 1, "conditions": [condition]}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));

    // Its changes are the other's, and its end too.
    play.see_lease(|lease| {
        granted(lease);
        lease["status"]["term"] = json!(1_000_000_000);
    });
    play.see_map("map", json!({"lessor.dev/lease": "cart"}));
    play.pass(120_000);
    assert_eq!(play.asked, []);
    assert_eq!(play.replica.leads(), Some(1), "its terms are none of ours");
    assert!(!play.relisted);
}

#[test]
fn a_namespace_is_listed_anew_when_the_other_installation_is_gone() {
    let mut play = Play::primary();
    grant(&mut play);
    play.see_other(Event::Applied);
    play.asked.clear();
    play.see_other(Event::Deleted);
    assert!(play.relisted);
    play.see_lease(granted);
    assert_eq!(play.replica.leases().iter().count(), 1);
}

#[test]
fn without_the_right_to_read_other_lessors_a_replica_serves_all_the_same() {
    let mut play = Play::primary();
    play.observe(Observation::OtherLessor(Event::Failing(Failure::Forbidden("no".to_owned()))));
    grant(&mut play);
}

#[test]
fn a_claim_names_the_namespaces_of_the_installation() {
    let mut play = Play::new();
    play.observe(Observation::Lessor(Event::Synced(Default::default())));
    play.pass(100);
    let ticket = play.ask(|request| matches!(request, Request::ReadLessor));
    let lessor = play.lessor(json!({}));
    play.answer(ticket, Response::Lessor(Box::new(lessor)));
    let [(_, Request::WriteLessor { status, .. })] = play.asked.as_slice() else {
        panic!("asked {:?}", play.asked)
    };
    assert_eq!(status["namespaces"], json!(["*"]));
}
