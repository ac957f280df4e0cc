module github.com/plumbline/plumbline/integration/whereabouts

go 1.26.0

require github.com/k8snetworkplumbingwg/whereabouts v0.9.2

require (
	github.com/containernetworking/cni v1.3.0 // indirect
	github.com/imdario/mergo v0.3.16 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	k8s.io/utils v0.0.0-20241104163129-6fe5fd82f078 // indirect
)
