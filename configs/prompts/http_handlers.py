import logging
from http import HTTPStatus

logger = logging.getLogger(__name__)


class NotFound(Exception):
    status = HTTPStatus.NOT_FOUND


class BadRequest(Exception):
    status = HTTPStatus.BAD_REQUEST


class UserHandler:
    def __init__(self, store):
        self.store = store

    def get(self, request):
        user_id = request.params.get("id")
        if user_id is None:
            raise BadRequest("missing parameter: id")
        user = self.store.get_user(user_id)
        if user is None:
            raise NotFound("no such user: %s" % user_id)
        logger.info("get user %s", user_id)
        return {"status": HTTPStatus.OK, "body": user.to_dict()}

    def post(self, request):
        body = request.json()
        if "name" not in body:
            raise BadRequest("missing field: name")
        user = self.store.create_user(body["name"], body.get("email"))
        logger.info("create user %s", user.id)
        return {"status": HTTPStatus.CREATED, "body": user.to_dict()}

    def delete(self, request):
        user_id = request.params.get("id")
        if user_id is None:
            raise BadRequest("missing parameter: id")
        self.store.delete_user(user_id)
        logger.info("delete user %s", user_id)
        return {"status": HTTPStatus.NO_CONTENT, "body": None}


class OrderHandler:
    def __init__(self, store):
        self.store = store

    def get(self, request):
        order_id = request.params.get("id")
        if order_id is None:
            raise BadRequest("missing parameter: id")
        order = self.store.get_order(order_id)
