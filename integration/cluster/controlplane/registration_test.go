//go:build cluster

package controlplane_test

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/admission"
	"github.com/plumbline/plumbline/topology/claim"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// webhooks returns the objects that register the webhook at the API server. client is its
// address, a service or a URL without the path. Match conditions exclude what needs no decision: changes that leave the spec as
// it is (finalizers, labels), and classes of other drivers. The driver of a claim shows
// only in its classes, so every new claim is checked, against a cache. No namespace is
// exempt. networkQoS says that NetworkQoS objects are enforced.
func webhooks(client admissionregistrationv1.WebhookClientConfig,
	networkQoS bool,
) []*admissionregistrationv1.ValidatingWebhookConfiguration {
	if client.URL != nil {
		client.URL = new(*client.URL + admission.Path)
	} else if client.Service != nil {
		client.Service = client.Service.DeepCopy()
		client.Service.Path = new(admission.Path)
	}
	requests := []admissionregistrationv1.RuleWithOperations{
		rule(resourceapi.GroupName, resourceapi.SchemeGroupVersion.Version, "resourceclaims", "resourceclaimtemplates", "deviceclasses"),
	}
	if networkQoS {
		requests = append(requests, rule(qosv1alpha1.GroupVersion.Group, qosv1alpha1.GroupVersion.Version, qosv1alpha1.Resource().Resource))
	}
	return []*admissionregistrationv1.ValidatingWebhookConfiguration{
		registration(admission.Definitions, client, admissionregistrationv1.Fail,
			[]admissionregistrationv1.RuleWithOperations{
				rule(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "networktopologies", "deviceexposurepolicies",
					"addresspools"),
				rule(schemav1alpha1.GroupVersion.Group, schemav1alpha1.GroupVersion.Version, "cnipluginschemas"),
			},
			// The generation of a custom resource changes with its spec.
			match("new-spec", `request.operation == "CREATE" || object.metadata.generation != oldObject.metadata.generation`)),
		registration(admission.Requests, client, admissionregistrationv1.Ignore, requests,
			match("new-spec", `request.operation == "CREATE" || object.spec != oldObject.spec`),
			match("not-others-class", `request.resource.resource != "deviceclasses" || object.spec.?config.orValue([]).exists(c, c.?opaque.?driver.orValue("") == "`+claim.Driver+`")`)),
	}
}

func registration(name string, client admissionregistrationv1.WebhookClientConfig, policy admissionregistrationv1.FailurePolicyType,
	rules []admissionregistrationv1.RuleWithOperations, conditions ...admissionregistrationv1.MatchCondition,
) *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: admissionregistrationv1.SchemeGroupVersion.String(),
			Kind:       "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "validate.networking.dra.io", ClientConfig: client, Rules: rules, MatchConditions: conditions,
			FailurePolicy: new(policy), MatchPolicy: new(admissionregistrationv1.Equivalent),
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(defaultTimeoutSeconds)),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
}

func rule(group, version string, resources ...string) admissionregistrationv1.RuleWithOperations {
	scope := admissionregistrationv1.AllScopes
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources,
			Scope: &scope,
		},
	}
}

func match(name, expression string) admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{Name: name, Expression: expression}
}
