// Package rollout owns how an edit of a NetworkTopology reaches the pods of this
// node that run it, where the topology's update policy is InPlace.
//
// Which nodes update when is the controller's to say (topology/controller): it
// names them in the topology's status. A Follower watches the topologies that this
// node has claims of, and while the node is named it updates one claim after the
// other; attachment.Keeper makes each of them true or leaves it as it was. What
// became of it the claim's status tells (reconcile/pod/claimstatus), and from that the
// controller knows how the rollout goes. A failure ends the attempt in that claim
// until there is another generation; what only the pod or the node is the reason of
// is tried again. See docs/adr/0015.
//
// Follow says whether a claim can be given a later generation with the devices it
// has. Where it cannot it is held back, which is no failure: it takes a new pod.
//
// Nothing of this is part of a hook or of the preparation of a claim. An API
// server that is away means that nothing is updated, and no more.
package rollout
